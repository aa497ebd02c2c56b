"""The rooms of operators: command line, admin port with its console, development node."""
