"""Tests of one machine: programs that measure, and the runner of a suite.

Each test is a program of its own (`python -m fairlead.node.machine_tests.cpu OPTIONS`), which
leaves one line of JSON: a test that hangs or dies takes no other with it. What they are for, their
options and time-outs are data (`api/cluster/node_suites.toml`); nothing here judges a figure.
"""
