"""Settings: sections, the files that they come from, the policies that they become.

Begin with `controller_settings.py`.
"""
