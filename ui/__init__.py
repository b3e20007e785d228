"""What the pages share: the settings and their link, the inputs, the views and the charts. Holds no memory formula."""
