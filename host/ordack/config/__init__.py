"""Configuration and names: settings, queue names, addresses, TLS, message classes, paths."""
