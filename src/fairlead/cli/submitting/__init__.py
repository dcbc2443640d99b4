"""From a request or a manifest to stored objects: checked as a whole, then stored.

Begin with `submission.py`, then `manifest.py`.
"""
