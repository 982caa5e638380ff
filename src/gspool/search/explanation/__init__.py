"""Why an image has its embedding: where the pooling looks, which prototypes it finds, what two images share."""
