"""MetaFlow's substitutions (`tvm_cascade.substitution`) on Relax modules, priced by an analytic or a measured cost."""
