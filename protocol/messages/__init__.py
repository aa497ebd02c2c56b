"""One module per Kafka API: its request and response, with the history of their versions on top."""
