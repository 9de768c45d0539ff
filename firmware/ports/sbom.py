"""Adds the Debian sources that firmware images are built from to an SBOM of CycloneDX.

python sbom.py FILE SOURCE...    SOURCE: NAME_VERSION.dsc, or NAME_VERSION_ARCHITECTURE.deb
"""

import json
import re
import sys
from pathlib import Path
from urllib.parse import quote

sbom = Path(sys.argv[1])
content = json.loads(sbom.read_text("utf-8"))
for source in sorted(Path(path).name for path in sys.argv[2:]):
    found = re.fullmatch(r"(.+?)_(.+?)(_\w+)?\.(dsc|deb)", source)
    if not found:
        sys.exit(f"sbom.py: {source} is no NAME_VERSION.dsc and no NAME_VERSION_ARCHITECTURE.deb")
    name, version = found[1].removesuffix("-source"), found[2]
    purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch=source"
    used = {"name": "used-in", "value": "firmware"}
    content["components"].append(
        {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "properties": [used]}
    )
sbom.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
