"""Writers of a document and of a comparison: HTML, Markdown, plain text."""
