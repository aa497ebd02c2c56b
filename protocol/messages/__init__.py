"""One module per Kafka API that is served: its request and response, with the history of their versions on top."""
