"""What people and other controllers ask of the planner: explanations, forecasts, what-if.

Begin with `explain.py`. No other part of the core imports it.
"""
