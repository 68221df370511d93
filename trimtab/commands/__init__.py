"""One file per command of `trimtab`: read the arguments, call the library, print; nothing is computed
here."""
