"""The rules that each test case of confirmation.md section 9 shows; the cases are in tests/mp/confirm_cases.py."""

from __future__ import annotations

RULES = {
    "1": ["C-01", "C-13", "C-25", "C-27", "C-81"],
    "2": ["C-13", "C-23", "C-34", "C-86"],
    "3": ["C-13", "C-25"],
    "4": ["C-12", "C-23", "C-34"],
    "5": ["C-20", "C-83"],
    "6": ["C-21", "C-83"],
    "7": ["C-20", "C-84"],
    "8": ["C-26", "C-82"],
    "9": ["C-26", "C-85"],
    "10": ["C-25", "C-26", "C-85"],
    "11": ["C-02"],
    "12": ["C-04", "C-43", "C-45"],
    "13": ["C-11", "C-24", "C-29", "C-87"],
    "15": ["C-12"],
}
