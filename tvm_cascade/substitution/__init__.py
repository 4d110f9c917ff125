"""MetaFlow: equivalent graphs by relaxed substitutions, under a cost that the user chooses."""
