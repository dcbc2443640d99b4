"""A tenant who knows the code: what an editor of one namespace can do to all others.

`python -m fairlead.sim.tenants` draws sequences of his API calls and runs them against worlds in
which others work; see `docs/design/simulation.md`.
"""
