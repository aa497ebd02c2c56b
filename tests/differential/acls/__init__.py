"""The same ACLs and requests by several principals to a node and to Apache Kafka with its StandardAuthorizer."""
