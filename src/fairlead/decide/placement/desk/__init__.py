"""What the stages of one decision share: its policy, its room, and what it was told to repeat.

Begin with `context.py`. `repair.py` is here because elastic gangs grow by its means in every stage.
"""
