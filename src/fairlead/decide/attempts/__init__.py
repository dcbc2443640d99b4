"""What attempts have in common, of our jobs and of adopted groups: records and conditions."""
