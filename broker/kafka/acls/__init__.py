"""Access control lists (ACLs): their values, the authorizer that decides by them, and the node's copy of them."""
