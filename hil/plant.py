"""TLS between a board and its queue manager: a plant with its own authority and certificates."""

from pathlib import Path

from ordack.server import certificates

MANAGER = "plant"
BOARD = "press-3"
DAYS = 2


def secure(folder: Path, address: tuple[str, int]) -> dict[str, object]:
    """Let the queue manager of the store in `folder` listen at `address`, over TLS, for this board only. Returns the
    board's settings. Raises OSError."""
    made = folder / "tls"
    certificates.init(made, "plant of a campaign", DAYS)
    certificates.issue(made, MANAGER, [], DAYS)
    certificates.issue(made, BOARD, [], DAYS, board=True)
    (folder / "store" / "ordack.toml").write_text(
        f"[tls]\ncertificate = '../tls/{MANAGER}.pem'\nkey = '../tls/{MANAGER}.key'\nauthority = '../tls/ca.pem'\n"
        f"[[listen]]\naddress = '{address[0]}'\nport = {address[1]}\ntls = true\nallow-certificates = ['{BOARD}']\n"
    )
    files = {"authority": "ca.der", "certificate": f"{BOARD}.der", "key": f"{BOARD}.key.der"}
    return {"tls": {"name": MANAGER, **{name: (made / file).read_bytes().hex() for name, file in files.items()}}}
