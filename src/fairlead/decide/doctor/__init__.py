"""What the doctor's findings mean for the report: when it is written, and its conditions."""
