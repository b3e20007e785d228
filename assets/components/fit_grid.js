// A table of plans coloured by fit. Each cell is a button that says in words what its colour says.

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined && text !== null) node.textContent = text
  return node
}

function heading(text, scope, className) {
  const node = element("th", className, text)
  node.scope = scope
  return node
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const root = parentElement.querySelector(".grid")
  if (!root || !data) return
  const focused = root.querySelector("button:focus")
  const focusedPlace = focused ? focused.dataset.place : null
  const table = element("table", data.stale ? "stale" : "")
  table.setAttribute("aria-label", data.caption)
  table.setAttribute("aria-busy", data.stale ? "true" : "false")
  const head = element("thead")
  const names = element("tr")
  const corner = element("th", "corner", data.rowTitle)
  corner.rowSpan = 2
  const axis = element("th", "axis", data.columnTitle)
  axis.colSpan = data.columns.length
  names.append(corner, axis)
  const labels = element("tr")
  for (const label of data.columns) labels.append(heading(label, "col"))
  head.append(names, labels)
  const body = element("tbody")
  data.rows.forEach((row, y) => {
    const line = element("tr")
    line.append(heading(row.label, "row"))
    row.cells.forEach((cell, x) => {
      const box = element("td", (cell.verdict || "none") + (cell.mine ? " mine" : ""))
      const button = element("button", "", cell.text)
      button.type = "button"
      button.title = cell.title
      button.setAttribute("aria-label", cell.title)
      button.dataset.place = `${y},${x}`
      if (cell.mine) button.setAttribute("aria-current", "true")
      button.disabled = Boolean(data.stale || !cell.verdict || cell.mine)
      button.onclick = () => setTriggerValue("pick", [y, x])
      box.append(button)
      line.append(box)
    })
    body.append(line)
  })
  table.append(head, body)
  const legend = element("ul", "legend")
  for (const entry of data.legend) {
    const item = element("li")
    const chip = element("i", entry.kind)
    chip.setAttribute("aria-hidden", "true")
    item.append(chip, element("span", "", entry.name))
    legend.append(item)
  }
  root.replaceChildren(table, legend)
  if (focusedPlace) root.querySelector(`button[data-place="${focusedPlace}"]`)?.focus()
}
