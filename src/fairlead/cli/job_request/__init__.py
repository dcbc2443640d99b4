"""What a person asks for, as values: flags become a request, a request becomes a Job (pure).

Begin with `request.py`, then `jobspec.py`.
"""
