// The address that restores the page, and a button that copies it. Only the browser knows the address of the server.

async function copy(text, field) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    field.select()
    return document.execCommand("copy")
  }
}

export default function (component) {
  const { data, parentElement } = component
  const field = parentElement.querySelector("input")
  const button = parentElement.querySelector("button")
  const status = parentElement.querySelector("[role=status]")
  if (!field || !button || !data) return
  const address = window.location.origin + window.location.pathname + (data.query ? `?${data.query}` : "")
  if (field.value !== address) status.textContent = ""
  field.value = address
  field.setAttribute("aria-label", data.label)
  field.onfocus = () => field.select()
  button.textContent = data.copy
  button.onclick = async () => {
    status.textContent = (await copy(address, field)) ? data.copied : data.failed
  }
}
