"""What a release needs: the site of the documents, licences, and the packages with their checks."""
