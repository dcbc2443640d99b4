"""What stands behind `fairlead doctor`: the choice of readers, files, and output."""
