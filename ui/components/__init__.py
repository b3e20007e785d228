"""Small parts of the page that Streamlit has no element for. Each shows data through ``textContent``, never as HTML."""
