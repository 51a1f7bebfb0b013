"""What does it look like? Pages that a person can open without a network, and show to a colleague."""

from covey.report.lanes import draw
from covey.report.page import Cell, DrawnRun, Page, render, write
from covey.report.single_run import overlay

__all__ = ["Cell", "Page", "DrawnRun", "draw", "overlay", "render", "write"]
