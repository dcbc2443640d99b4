"""Placing gangs: the one planner that decides, repairs, answers "would it fit?" and says why not.

`cycle.decide` is a whole decision; `whatif` has questions to the same algorithm that change
nothing. How it packs and why: docs/design/placement.md.
"""
