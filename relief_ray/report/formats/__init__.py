"""Writers of a document: HTML, LaTeX, Markdown, plain text."""
