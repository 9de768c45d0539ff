"""The queue manager's decisions: a batch is decided, stored, acknowledged. No sockets and no clock."""
