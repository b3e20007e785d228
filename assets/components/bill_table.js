// The bill as a real table: wraps, turns into cards where it is narrow, and takes its colours from the theme.
// Every text is set through textContent; an address is used only if it is http(s).

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined && text !== null) node.textContent = text
  return node
}

function sourceNode(source) {
  const safe = /^https?:\/\//.test(source.url || "")
  const node = element(safe ? "a" : "span", "source", source.title)
  if (safe) {
    node.href = source.url
    node.target = "_blank"
    node.rel = "noopener noreferrer"
  }
  return node
}

function cell(row, className, label, tag = "td") {
  const node = element(tag, className)
  if (label) node.dataset.label = label
  row.append(node)
  return node
}

function itemRow(item, labels) {
  const row = element("tr", "item")
  const name = cell(row, "name", "", "th")
  name.scope = "row"
  const chip = element("span", "chip")
  chip.style.background = item.color
  chip.setAttribute("aria-hidden", "true")
  name.append(chip, element("span", "", item.name))
  cell(row, "amount", labels.amount).append(element("span", "", item.amount))
  const share = cell(row, "share", labels.share)
  const track = element("span", "track")
  track.setAttribute("aria-hidden", "true")
  const fill = element("span", "fill")
  fill.style.width = `${Math.max(0, Math.min(1, item.share)) * 100}%`
  fill.style.background = item.color
  track.append(fill)
  if (item.percent) share.append(track, element("span", "percent", item.percent))
  const how = cell(row, "how", labels.how)
  how.append(element("span", "", item.how))
  if (item.detail) how.append(element("span", "detail", item.detail))
  const basis = cell(row, "basis", labels.basis)
  basis.append(element("span", "", item.basis), sourceNode(item.source))
  return row
}

function headingRow(heading) {
  const row = element("tr", "heading")
  const name = cell(row, "name", "", "th")
  name.scope = "rowgroup"
  name.colSpan = 5
  name.append(element("span", "", heading.name))
  return row
}

function totalRow(total) {
  const row = element("tr", "total")
  const name = cell(row, "name", "", "th")
  name.scope = "row"
  name.append(element("span", "", total.name))
  cell(row, "amount").append(element("span", "", total.amount))
  const how = cell(row, "how")
  how.colSpan = 3
  how.append(element("span", "", total.how))
  return row
}

export default function (component) {
  const { data, parentElement } = component
  const root = parentElement.querySelector(".bill")
  if (!root || !data) return
  const labels = data.labels
  const table = element("table")
  table.setAttribute("aria-label", data.caption)
  const head = element("tr")
  for (const name of ["item", "amount", "share", "how", "basis"]) {
    const title = element("th", name === "item" ? "name" : name, labels[name])
    title.scope = "col"
    head.append(title)
  }
  const thead = element("thead")
  thead.append(head)
  const body = element("tbody")
  for (const row of data.rows) {
    body.append(row.total ? totalRow(row) : row.heading ? headingRow(row) : itemRow(row, labels))
  }
  table.append(thead, body)
  root.replaceChildren(table)
}
