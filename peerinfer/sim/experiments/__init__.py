"""The paper's §4 and §5 as commands: cells that are measured, and tables and figures made of them."""
