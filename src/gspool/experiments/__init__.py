"""One recipe a table or figure of the paper; results carry their provenance and are rendered into the documents."""
