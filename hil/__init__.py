"""The rig: boards, link faults, campaigns and reports. It sees boards, wires and messages, never protocol internals."""
