"""What runs inside a job's members: start-up of MPI, and progress reports. Standard library only.

These modules import nothing else of Fairlead, so that an image needs nothing but them.
"""
