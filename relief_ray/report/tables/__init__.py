"""The report: a document of sections, tables and figures, written as HTML, Markdown, LaTeX, CSV, PDF and PNG."""
