"""The rig: boards, faults in their links, campaigns, and reports. Sees boards, wires and messages, never the
protocol's inside.
"""
