"""The CustomResourceDefinitions of our own kinds, and the schemas of the built-in ones.

Begin with `crd.py`.
"""
