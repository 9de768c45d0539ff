"""`ordack serve`: sockets, TLS, serial ports, the page, metrics, and what systemd is told."""
