"""The network side of `ordack serve`: sockets, TLS, serial ports, the web page, metrics and systemd notification."""
