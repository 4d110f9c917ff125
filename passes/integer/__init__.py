"""TFLite's integer arithmetic as TE: one function an operator, registered by the name of the Relax operator it replaces."""
