"""What is configured, and what has a name: settings, queue names, addresses, TLS, message classes, paths."""
