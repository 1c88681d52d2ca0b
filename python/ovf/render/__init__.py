"""A report in the forms people and programs read: one file a form."""
