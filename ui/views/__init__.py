"""What the pages show, one module for each part of the page. Every figure has its text beside it."""
