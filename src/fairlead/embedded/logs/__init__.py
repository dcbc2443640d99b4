"""The logs of jobs: files that outlive their pods, and how they are read."""
