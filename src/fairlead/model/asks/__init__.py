"""What pods and jobs ask for, as values: amounts, rules of place, priorities, teams.

Begin with `requests.py`. Imports no other part of the model.
"""
