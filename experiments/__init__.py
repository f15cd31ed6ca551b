"""One module each table: ``python -m experiments.<name>`` writes ``results/<name>.*`` and its record."""
