"""Programs that measure; not part of the installed packages."""
