"""What is read off a candidate's text alone."""
